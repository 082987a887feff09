"""Tools for a teacher: the board, slides, routes, assessment, and assignments for a grader."""
