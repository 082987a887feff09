"""What runs inside each rank of an examined script. It needs PyTorch only, so it works in anybody's environment."""
