"""What may be shown and stored of options, paths and errors: everything but the secrets in them.

    public(text)      without what looks like a secret: user info and query of a URI, `password=…`
    Secrets           the very values that some options hold, to be hidden wherever they turn up, in any spelling

These are secret: the value of an option whose name says so; the user info of a URI and its query
(`s3://key:secret@bucket/…`, `https://…?sig=…`); and at any depth what follows such a name (`user=u;password=p`,
`{"token": "…"}`).

The public form of a value has no trace of the secret. So a password may change, or move from the URI to the
environment, and the query still resumes from its state. In messages, `***` replaces known values.

Errors of libraries quote URIs, and Spark shows the whole traceback with all causes. So every entry point that Spark
calls has `with secrets.kept():`. It passes an error on as it is, unless the error or a cause of it has a secret: then
it passes the error on without its causes and without the secret.

Not covered: secrets of fewer than four characters outside of a URI or a pair, and those that a library changes.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus, unquote

from spark_mjoin.errors import MJoinError

HIDDEN = "***"
_WORDS = (
    r"secret|passw|passphrase|pwd|token|credential|jaas|signature|authorization|cookie|bearer"
    r"|(?:access|account|api|private|shared|encryption|master|storage|auth|signing)[._-]?key"
)
_NAME = re.compile(rf"{_WORDS}|(?:^|[._-])(?:key|pass|sas|sig|auth)$", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?<![\w/.\-])([\w.\-]*(?:{_WORDS})[\w.\-]*|sig|sas)(\s*=\s*|[\"']\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s;,&\"']+)",
    re.IGNORECASE,
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'<>]*")
_WHOLE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_USER = re.compile(  # a key may have slashes in it, and a host a port
    r"(?P<scheme>[^:/]+)://(?P<user>[^/]*|[^/:@]+:(?!\d{1,5}(?:/|$))[^@]*)@", re.DOTALL
)
_QUERY = re.compile(r"\?(?=[\w.\-%]+=).*", re.DOTALL)
_CONTAINER = {"abfs", "abfss", "wasb", "wasbs"}  # container@account: no user, but a part of the place
_HEX = re.compile("%[0-9A-F]{2}")
_LEAST = 4  # characters: less is everywhere


def is_secret(name: str) -> bool:
    """Whether the name of an option says that its value is a secret."""
    return _NAME.search(name) is not None


def public(text: str) -> str:
    """A text without what looks like a secret."""
    return _PAIR.sub(rf"\1\2{HIDDEN}", _URI.sub(lambda uri: _public_uri(uri[0]), text))


def _public_uri(uri: str) -> str:
    return _USER.sub(lambda m: m[0] if _is_container(m) else f"{m['scheme']}://", _QUERY.sub("", uri), count=1)


def _is_container(match: re.Match[str]) -> bool:
    return match["scheme"].lower() in _CONTAINER and ":" not in match["user"]


def public_value(value: str) -> str:
    """The value of an option without what looks like a secret; one that is a URI has no end before its own."""
    return public(_public_uri(value) if _WHOLE.match(value) else value)


def public_options(options: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Options as they may be stored: without those that are secret, and without the secrets in others."""
    return {name: public_value(value) for name, value in options if not is_secret(name)}


@dataclass(frozen=True)
class Secrets:
    """The secret values of some options. Printing it shows none of them."""

    _values: tuple[str, ...] = field(default=(), repr=False)  # the longest first

    @classmethod
    def of(cls, options: Iterable[tuple[str, str | None]]) -> Secrets:
        found: set[str] = set()
        for name, value in options:
            if value is not None:
                found.update([value] if is_secret(name) else (), _inside(value))
        spelled = {spelling for each in found for spelling in _spellings(each)}
        return cls(tuple(sorted((s for s in spelled if len(s) >= _LEAST), key=lambda s: (-len(s), s))))

    def hide(self, text: str) -> str:
        """A text without these values, and without what else looks like a secret."""
        return public(self._without_values(text))

    def _without_values(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def cause(self, error: Exception) -> Exception | None:
        """An error as the cause of another; None if it, or a cause of its own, has a secret."""
        return error if self._is_clean(error) else None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """No error that passes has a secret in it."""
        try:
            yield
        except Exception as error:
            if self._is_clean(error):
                raise
            text = self.hide(str(error))
            kind = type(error) if isinstance(error, MJoinError) else RuntimeError
            said = text if kind is type(error) else f"{type(error).__name__}: {text}"
            raise kind(said).with_traceback(error.__traceback__) from None

    def _is_clean(self, error: BaseException) -> bool:
        seen: BaseException | None = error
        while seen is not None:
            text = "".join(traceback.format_exception_only(seen)) + repr(seen.args)
            if self.hide(text) != text:
                return False
            if isinstance(seen, BaseExceptionGroup) and not all(map(self._is_clean, seen.exceptions)):
                return False
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        return True


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it is, as a part of a URI, and as Python and JSON quote either: errors quote what they are about."""
    plain = unquote(secret)
    parts_of_uris = (quote(plain), quote(plain, safe=""), quote_plus(plain), quote(secret, safe=""))
    for text in (secret, plain, *parts_of_uris, *(_HEX.sub(lambda code: code[0].lower(), p) for p in parts_of_uris)):
        yield text
        yield from (json.dumps(text, ensure_ascii=escaped)[1:-1] for escaped in (True, False))
        for quoted in (repr, ascii):
            parts = [quoted(part)[1:-1] for part in text.split("'")]
            yield from ("'".join(parts), r"\'".join(parts))  # it depends on the text around it which of the two


def _inside(value: str) -> Iterator[str]:
    """The secrets in a value."""
    for uri in [value, *_URI.findall(value)] if _WHOLE.match(value) else _URI.findall(value):
        user = _USER.search(uri)
        if user is not None and not _is_container(user):
            _, colon, password = user["user"].partition(":")
            yield from (user["user"], password) if colon else (user["user"],)
        for query in _QUERY.findall(uri):
            for pair in query[1:].split("&"):
                name, _, of = pair.partition("=")
                if is_secret(name):
                    yield of
    for _, _, secret in _PAIR.findall(value):
        yield secret.strip("\"'")
