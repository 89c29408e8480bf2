"""Simulated exporters of accelerators: one module for each kind, and the frame that they share.

They are written from the documentation and the sources of the real exporters, which each module names. They import
nothing of `serving.accelerators`: an exporter that agrees with our own contracts by construction would prove nothing.
"""
