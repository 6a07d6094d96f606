"""Seconds a step: paired, interleaved sessions of several methods on real process groups over a known link."""
