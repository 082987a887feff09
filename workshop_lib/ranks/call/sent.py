"""What a call prints and displays on a rank, sent to the notebook in one order: each piece has its number."""

import itertools
import sys
from functools import partial
from typing import Any

from .messages import Displayed, Text, output_key


class Sent:
    """The output of one call after another. Texts come from this rank's streams, which collect what C prints, too."""

    def __init__(self):
        self._numbers = itertools.count()
        self._streams: list[Any] = []

    def begin(self) -> None:
        """A call begins."""
        self._numbers = itertools.count()
        streams: list[Any] = [sys.stdout, sys.stderr]
        for stream in streams:
            if hasattr(stream, "pub_thread") and stream not in self._streams:  # an engine's stream
                self._streams.append(stream)
                stream.pub_thread.schedule(partial(stream.register_hook, self.send_text))  # hooks belong to a thread

    def send(self, output: Text | Displayed) -> None:
        from ipyparallel.engine.datapub import publish_data  # only an engine has loaded it

        publish_data({output_key(next(self._numbers)): output})

    def send_text(self, message: dict) -> None:
        """Send a message with a stream's text in this order. It returns None, so the stream doesn't send it as well."""
        content = message["content"]
        self.send(Text(content["name"], content["text"]))


SENT = Sent()  # of this rank


def print_to_the_rank() -> None:
    """In a fork of this rank: print to the rank's files, which its streams read. A fork has no thread that sends."""
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - stays open as long as the fork
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
