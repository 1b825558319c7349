"""Inspection of programs: debugging, pictures of shardings, profiles, and per-device programs as code."""
