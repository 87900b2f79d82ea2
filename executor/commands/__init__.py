"""The commands of `bai`, by what they are about."""
