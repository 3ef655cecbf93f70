"""Scheduling policies: frozen parameters, pure functions of a cluster view."""
