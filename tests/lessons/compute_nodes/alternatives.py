"""Right answers to the exercises of 10 beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "device_of": {
        "by counting": """
            def device_of(rank, hosts, visible):
                before = 0
                for other, host in enumerate(hosts):
                    if host == hosts[rank] and other < rank:
                        before += 1
                return before % visible
            """,
        "by the list of the host's ranks": """
            def device_of(rank, hosts, visible):
                return [r for r, host in enumerate(hosts) if host == hosts[rank]].index(rank) % visible
            """,
    }
}
WRONG = {"device_of": {"nothing returned": ([("return ", "")], "it returned nothing")}}
