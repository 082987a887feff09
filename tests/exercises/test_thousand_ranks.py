"""The exercises of 12 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from exercises.answers import written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import thousand_ranks as check

NOTEBOOK = "12_thousand_ranks"
IMPORTS = "from workshop_lib.exercises import thousand_ranks as check"
BYTES = "mesh_bytes(data, tensor, layers, cut, whole, activations)"
BEST = "best_mesh(cluster, candidates)"

WRONG = {
    "mesh_bytes": {
        "nothing returned": ([("return {", "found = {")], "return {"),
        "three allreduces": ([("4 * 2 *", "3 * 2 *")], "none of the known mistakes"),
        "two gathers": ([("3 * (data", "2 * (data")], "reduces its gradients once"),
        "nothing is cut": ([("cut / tensor", "cut")], "divide the weights that are cut"),
    },
    "best_mesh": {
        "nothing returned": ([("return mesh, plan", "chosen = mesh, plan")], "a pair of a Mesh and a Plan"),
        "memory forgotten": ([("<= cluster.memory_bytes", "> 0")], "first drop what takes more"),
        "the slowest": ([("min(fitting", "max(fitting")], "the slowest one that fits"),
        "the smallest": ([("each[0].step_s", "each[0].peak_bytes")], "takes the least memory"),
    },
}
ENDLESS = {
    "mesh_bytes": {"a loop": ([("return {", "while data: {")], "doesn't end")},
    "best_mesh": {"a loop": ([("return mesh", "while plan: mesh")], "doesn't end")},
}


class TestThousandRanks(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["mesh_bytes", "best_mesh"]
    right = {
        "collective by collective": lambda: written(
            "",
            BYTES,
            "def ring(p, n):",
            "    return (p - 1) / p * n",
            "sent = {'data': 0, 'tensor': 0.0}",
            "for _ in range(layers):",
            "    sent['data'] += sum(ring(data, whole + cut / tensor) for _ in range(3))",
            "    sent['tensor'] += sum(2 * ring(tensor, activations) for _ in range(4))",
            "return sent",
        ),
        "by the utilization": lambda: written(
            IMPORTS,
            BEST,
            "best, most = None, 0.0",
            "for mesh, plan in candidates:",
            "    made = check.try_mesh(cluster, mesh, plan)",
            "    if made.peak_bytes < cluster.memory_bytes and made.mfu > most:",
            "        best, most = (mesh, plan), made.mfu",
            "return best",
        ),
    }
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, ENDLESS)
