"""Emulated devices and links under real code: a clock of emulated time on every rank."""
