"""Tools for a teacher: the board, slides, routes, and assignments for a grader."""
