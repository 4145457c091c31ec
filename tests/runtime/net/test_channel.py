"""Status codes: each error of fedboost has one."""

import grpc
import pytest

from fedboost import errors
from fedboost.errors import FedboostError
from fedboost.runtime.net.channel import CAUSE_KEY, STATUS, explained, status_of

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FedboostError) and kind is not FedboostError
]
TRAVELLING = (errors.ConfigError, errors.PeerError, errors.Refused, errors.SessionFailed)


class Call:
    """A call that ended with an error."""

    def __init__(self, error):
        self._error = error

    def code(self):
        return status_of(self._error)

    def details(self):
        return str(self._error)

    def trailing_metadata(self):
        return ((CAUSE_KEY, self._error.code),)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_error_has_a_status_code(kind):
    assert kind in STATUS
    assert isinstance(status_of(kind("a-cause", "why")), grpc.StatusCode)


@pytest.mark.parametrize("kind", TRAVELLING, ids=lambda kind: kind.__name__)
def test_an_error_that_travels_is_read_back_as_itself(kind):
    read = explained(Call(kind("a-cause", "why")), "the aggregator")
    assert type(read) is kind
    assert (read.code, str(read)) == ("a-cause", "why")


def test_an_error_of_a_program_has_the_code_of_its_base():
    class Own(errors.Refused):
        pass

    assert status_of(Own("a-cause", "why")) is grpc.StatusCode.PERMISSION_DENIED
