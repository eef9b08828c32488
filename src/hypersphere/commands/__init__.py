"""One module a subcommand of `hypersphere`; each has main(argv) -> exit code."""
