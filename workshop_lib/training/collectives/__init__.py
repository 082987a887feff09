"""Collectives by hand that several lessons run, and communicators that count what a collective sends."""
