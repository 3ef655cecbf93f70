"""What a job file may name: models, policies and data sets, gathered from their packages."""

from __future__ import annotations
