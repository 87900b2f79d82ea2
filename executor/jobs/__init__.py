"""Finds, lists, follows, fetches and prunes the jobs in a store."""
