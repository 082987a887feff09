"""Tools for a teacher: slides, routes, and assignments for a grader."""
