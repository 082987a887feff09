"""What 11b_pipelines uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__, check=".judge", figures=".figures", orders=".orders", pipeline=".pipeline", with_pytorch=".with_pytorch"
)
