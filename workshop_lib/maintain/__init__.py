"""What we need to maintain the workshop: set-up, Horovod's wheel, and the notebooks' and the book's making."""
