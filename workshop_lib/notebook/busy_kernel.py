"""Lets a page that is opened while a cell runs find the kernel and its widgets.

ipykernel answers a new page between two cells. Until then JupyterLab would show "Loading widget..." in place of a live
view, and the view's Stop would be out of reach while ranks train.
"""

import threading
from typing import Any

import zmq

# What a page asks first. It knows of no subshell yet, so it sends these messages to the kernel's main loop.
REQUESTS = ("kernel_info_request", "comm_info_request")
CONTROL = "jupyter.widget.control"  # the target of the comm through which a page asks for the state of all widgets


class NewPages:
    """Handles a page's first messages in a subshell of their own, beside the cell that runs."""

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.subshell = ""
        self.comms: set[str] = set()  # open comms to CONTROL
        self.lock = threading.Lock()
        self.cell: dict = kernel.get_parent()  # the request that the main loop handles; empty between two of them
        self.receive_here = kernel.shell_channel_thread_main
        self.publish_here = kernel._publish_status
        kernel._publish_status = self.publish_status
        kernel.shell_channel_thread.io_loop.add_callback(self._begin)

    def _begin(self) -> None:
        """Take over the messages of the shell channel. Called in the thread that receives them."""
        self.subshell = self.kernel.shell_channel_thread.manager._create_subshell()
        self.kernel.shell_stream.on_recv(self.receive, copy=False)

    async def receive(self, frames: list) -> None:
        """Receive a message, and send it on to the main loop or to a subshell."""
        session = self.kernel.session
        idents, parts = session.feed_identities(frames, copy=False)
        message = session.deserialize(parts, content=False, copy=False)
        header = message["header"]
        if not header.get("subshell_id") and self._is_of_a_new_page(header["msg_type"], message["content"]):
            header["subshell_id"] = self.subshell
            frames = [zmq.Frame(part) for part in session.serialize(message, idents)]
        await self.receive_here(frames)

    def _is_of_a_new_page(self, kind: str, packed: Any) -> bool:
        if kind in REQUESTS:
            return True
        if not kind.startswith("comm_"):
            return False
        content = self.kernel.session.unpack(packed)
        comm = content.get("comm_id")
        if kind == "comm_open" and content.get("target_name") == CONTROL:
            self.comms.add(comm)
        known = comm in self.comms
        if kind == "comm_close":
            self.comms.discard(comm)
        return known

    def publish_status(self, status: str, channel: str, parent: dict | None = None) -> None:
        """Publish a status. Once another thread has handled its message, say again that the main loop is busy."""
        with self.lock:
            self.publish_here(status, channel, parent)
            if threading.current_thread() is threading.main_thread():
                self.cell = (parent or self.kernel.get_parent(channel)) if status == "busy" else {}
            elif status == "idle" and self.cell:
                self.publish_here("busy", channel, self.cell)


def answer_new_pages(kernel: Any) -> None:
    """Let `kernel` answer new pages while a cell runs. Does nothing in a kernel without subshells."""
    if getattr(kernel, "_supports_kernel_subshells", False):
        NewPages(kernel)
