"""Tests of training jobs."""
