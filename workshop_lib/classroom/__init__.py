"""What a teacher needs: the board, slides, routes, assessment, and assignments for a grader."""
