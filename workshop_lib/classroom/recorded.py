"""A kernel for recordings: running a cell shows its recorded outputs again, so Shift+Enter does no harm.

It computes nothing and needs no ranks. JupyterLab shows its name beside the notebook.
"""

import os

import nbformat
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel


def outputs(notebook: str) -> dict[str, list]:
    """The outputs of each code cell in a notebook file, by the cell's source."""
    cells = nbformat.read(notebook, as_version=4).cells
    return {cell.source: cell.outputs for cell in cells if cell.cell_type == "code"}


class Recorded(Kernel):
    implementation = "recorded"
    implementation_version = "1"
    banner = "Shows what was recorded."
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}

    def __init__(self, **options):
        super().__init__(**options)
        self.outputs = outputs(os.environ["JPY_SESSION_NAME"])  # read now, before any cell runs and loses them

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **_):
        """Send the outputs that the notebook has for a cell with this code."""
        for output in self.outputs.get(code, []):
            content = {name: value for name, value in output.items() if name != "output_type"}
            if "execution_count" in content:  # the number beside the output
                content["execution_count"] = self.execution_count
            self.send_response(self.iopub_socket, output.output_type, content)
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=Recorded)
