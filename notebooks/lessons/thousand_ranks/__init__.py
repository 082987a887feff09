"""What 12_thousand_ranks uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    beside_published="workshop_lib.forecast.figures:beside_published",
    catalogue="workshop_lib.machine.catalogue",
    dry_run="workshop_lib.dryrun.dry_run:dry_run",
    dry_runs="workshop_lib.dryrun.dry_run:dry_runs",
    edited=".edited",
    figures=".figures",
    meshes="workshop_lib.forecast.meshes",
    pretend="workshop_lib.dryrun.pretend",
    published="workshop_lib.forecast.published",
    real_run="workshop_lib.dryrun.dry_run:real_run",
)
