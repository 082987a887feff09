"""Errors that a user can cause and put right: their text alone is shown, without frames of this library."""


class WorkshopError(Exception):
    """What happened, to what, and what to do next, in one or a few sentences."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return f"{type(self).__name__}: {self}".splitlines()


class InputError(WorkshopError, ValueError):
    """A value that was typed, passed or read from a file cannot be used."""
