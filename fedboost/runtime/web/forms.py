"""What every application of pages does alike: it reads forms, and answers with what its pages load.

Refuses: bodies that are no form, and forms of more fields than any page has (Refusal).
"""

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedboost.runtime.web.guard import Refusal


def asset_routes(assets: Mapping[str, tuple[str, str]]) -> list[Route]:
    """The routes of what pages load. assets: content and media type, by path."""
    return [Route(path, partial(_asset, *content)) for path, content in assets.items()]


async def _asset(content: str, kind: str, request: Request) -> Response:
    return Response(content, media_type=kind)


async def read_form(request: Request, fields: int) -> Callable[[str], str]:
    """The first value of each field of a form, '' of one that it lacks. fields: how many it has at most."""
    try:
        found = parse_qs((await request.body()).decode("latin-1"), max_num_fields=fields)
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "this is no form of a page") from None
    return lambda name: found.get(name, [""])[0]
