"""What can go wrong. Each message says what was wrong, where, and what to do."""


class RemoraError(Exception):
    """Anything that Remora reports."""


class ConnectionFailed(RemoraError, ConnectionError):
    """There is no node, it refused, or the connection broke."""


class CallTimedOut(RemoraError, TimeoutError):
    """A call took longer than its client waits."""


class KernelFailed(RemoraError, RuntimeError):
    """A kernel ended otherwise than with an answer."""


class InvalidArgument(RemoraError, ValueError):
    """An argument, a file or a platform is not what it should be."""


class StoreRefused(RemoraError):
    """The replicated store has not done it, and will not."""


class OutcomeUnknown(RemoraError):
    """The replicated store may have done it, or may still."""
