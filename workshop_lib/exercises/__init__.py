"""The course: which exercises the notebooks have, and which of them this learner has solved."""
