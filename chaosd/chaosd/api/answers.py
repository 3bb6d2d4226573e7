"""How both servers of the daemon (the local API and the page) read requests and answer them: JSON, errors included."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 << 10
"""The longest request names a site and a reason: a few hundred bytes."""

CLOSE_TIMEOUT_S = 1.0
"""An answer under way at the end of the daemon (that of `leave`) has so long to be written."""

Request = TypeVar("Request", bound=msgspec.Struct)
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LinkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: id, unique prefix of it, or name."""

    site: Text
    add: bool


class LeaveBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(max_length=1024)] = "asked for by the operator"


class RecoverBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which state a run that stands goes on: that of `round` at `site` (id, unique prefix of it, or name), or
    (`anew`) none."""

    site: Annotated[str, msgspec.Meta(max_length=64)] = ""
    round: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    anew: bool = False


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A refusal or a defect becomes `{"error": text}`."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.content_type == "application/json":
            raise
        text = f"{request.method} {request.path}: {error.reason}"
        return json_answer({"error": text}, status=error.status)
    except Exception as error:  # the asker gets a line, the log the story
        log.exception("local API: %s %s failed", request.method, request.path)
        return json_answer(
            {"error": f"the daemon failed to answer: {type(error).__name__}; its log says more"}, status=500
        )


async def read_body(request: web.Request, kind: type[Request]) -> Request:
    """The body of a request as a `kind`, checked; a refusal with 400 that names the field."""
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusal(400, f"the request is not a {kind.__name__}: {error}") from None


def refusal(status: int, text: str) -> web.HTTPException:
    """An answer of 4xx or 503 that says why, to be raised."""
    kinds: dict[int, type[web.HTTPException]] = {
        400: web.HTTPBadRequest,
        401: web.HTTPUnauthorized,
        403: web.HTTPForbidden,
        404: web.HTTPNotFound,
        503: web.HTTPServiceUnavailable,
    }
    body = msgspec.json.encode({"error": text}).decode()
    return kinds[status](text=body, content_type="application/json")


def json_answer(value: object, status: int = 200) -> web.Response:
    """An answer of the API."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
