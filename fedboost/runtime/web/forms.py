"""What every application of pages does alike: forms, log-in and log-out, and what its pages load."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedboost.runtime.web.guard import Refusal
from fedboost.runtime.web.logins import Logins

MAX_FIELDS, MAX_LOGIN_FIELDS = 8, 4
"""Of a form of any page, and of the form for a token."""
ReadForm = Callable[[Request], Awaitable[Callable[[str], str]]]


def shared_routes(
    logins: Logins, log_out_form: ReadForm, assets: Mapping[str, tuple[str, str]]
) -> list[Route]:
    """The routes by which a reader logs in and out, and of what pages load. log_out_form: reads the form of a
    log-out, Refusal if it does not count; assets: content and media type, by path."""
    return [
        Route("/login", partial(_log_in, logins), methods=["POST"]),
        Route("/logout", partial(_log_out, logins, log_out_form), methods=["POST"]),
        *(Route(path, partial(_asset, *content)) for path, content in assets.items()),
    ]


async def _log_in(logins: Logins, request: Request) -> Response:
    form = await read_form(request, MAX_LOGIN_FIELDS)
    return _to_overview(logins.log_in(form("token"), request.scope))


async def _log_out(
    logins: Logins, form: Callable[[Request], Awaitable[object]], request: Request
) -> Response:
    await form(request)
    return _to_overview(logins.log_out(request.scope))


def _to_overview(cookie: str) -> Response:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})


async def _asset(content: str, kind: str, request: Request) -> Response:
    return Response(content, media_type=kind)


async def read_form(request: Request, most: int = MAX_FIELDS) -> Callable[[str], str]:
    """The first value of each field of a form, '' of one that it lacks. Refusal for other bodies, and for
    forms of more fields than `most`."""
    try:
        found = parse_qs((await request.body()).decode("latin-1"), max_num_fields=most)
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "this is no form of a page") from None
    return lambda name: found.get(name, [""])[0]
