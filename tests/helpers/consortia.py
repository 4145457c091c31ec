"""Consortia over the network that several tests share."""

import grpc
from sites import NAMES, terms

from fedboost.runtime.local.simulation import simulate
from fedboost.runtime.net import channel
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import TrainRequest, encode_train_request

TWO = NAMES[:2]
THREE = NAMES[:3]


def expected(tables, **settings):
    return simulate(terms(**settings), tables).model.to_bytes()


def channel_to(one):
    return grpc.aio.insecure_channel(one.address, options=channel.CLIENT_OPTIONS)


def submit(opened, terms, version=str(WIRE_VERSION)):
    """A raw call of an analyst."""
    call = opened.unary_stream(channel.TRAIN)
    return call(
        encode_train_request(TrainRequest(terms.canonical())), metadata=[(channel.VERSION_KEY, version)]
    )
