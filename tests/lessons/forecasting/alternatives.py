"""Right answers to the exercises of 08c beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "fit_and_test": {
        "with weights": """
            def fit_and_test(message_bytes, seconds, held_out):
                used = np.arange(len(seconds)) != held_out
                line = np.polyfit(message_bytes[used], seconds[used], 1, w=1 / seconds[used])
                error = np.polyval(line, message_bytes[held_out]) / seconds[held_out] - 1
                return [line[1], line[0], error]
            """,
        "by hand": """
            def fit_and_test(message_bytes, seconds, held_out):
                a = b = c = d = e = 0
                for i, (n, t) in enumerate(zip(message_bytes, seconds)):
                    if i != held_out:
                        a, b, c = a + 1 / t**2, b + n / t**2, c + n**2 / t**2
                        d, e = d + 1 / t, e + n / t
                alpha, beta = (d * c - e * b) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)
                return alpha, beta, (alpha + beta * message_bytes[held_out]) / seconds[held_out] - 1
            """,
    },
    "overlapped_step": {
        "message after message": """
            def overlapped_step(forward_s, backward_s, message_s, messages):
                end = forward_s
                for j in range(1, messages + 1):
                    end = max(end, forward_s + backward_s * j / messages) + message_s
                return end
            """
    },
}
WRONG = {
    "fit_and_test": {
        "logarithms": (
            [
                ("np.column_stack([1 / t, n / t])", "np.column_stack([np.ones(len(t)), np.log(n)])"),
                ("np.linalg.lstsq(rows, np.ones(len(t)))[0]", "np.exp(np.linalg.lstsq(rows, np.log(t))[0])"),
            ],
            "in µs for alpha, it gives",
        ),
        "nothing returned": ([("return ", "")], "alpha_s, beta_s_per_byte and the error"),
    },
    "overlapped_step": {
        "the sum of both": ([("max(keeps_up_s, busy_s)", "keeps_up_s + busy_s")], "it gives 5.75 where 3.25 is right")
    },
}
