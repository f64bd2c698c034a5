"""What calls raise."""


class Error(Exception):
    """Why a call failed: ``code`` is a stable word, ``retry`` whether the same call may succeed
    later; the text has numbers, units and the way out."""

    def __init__(self, text: str, code: str = "", retry: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.retry = retry

    def __str__(self) -> str:
        return self.text

    def __reduce__(self):
        return (type(self), (self.text, self.code, self.retry))


class NotFound(Error, KeyError):
    """There is no such allocation, name or key."""


class Lost(Error):
    """What was there is gone, or no longer ours: do not go on as if it were."""


class PoolFull(Error):
    """There is no memory there: free some, or use another rack."""


class Busy(Error):
    """Not now: retry after a pause."""


class Timeout(Error, TimeoutError):
    """No answer in time: repeating the call does no harm."""


class Unreachable(Timeout):
    """A rack or the master is not there; nothing was done. Retry when it is back."""


class OutcomeUnknown(Error):
    """It was done once or not at all: read the state before trying again."""


class Denied(Error, PermissionError):
    """The caller may not."""


class Invalid(Error, ValueError):
    """An argument or option makes no sense."""
