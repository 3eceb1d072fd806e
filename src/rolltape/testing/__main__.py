"""`python -m rolltape.testing`: torture a journal from outside, or watch the demo."""

from __future__ import annotations

import argparse
import os
import sys


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.command == "torture-read":
        from rolltape.testing.torture import read

        return read(options.dir)
    if options.command == "torture-write":
        return _write(options, argv)
    from rolltape.testing.demo import demo

    return demo()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rolltape.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("torture-write", help="append until done or killed; run again, it continues")
    write.add_argument("--dir", required=True, help="the run's directory, created if need be")
    write.add_argument("--seed", type=int, required=True, help="decides the payloads")
    write.add_argument("--trajectories", type=int, required=True)
    write.add_argument("--steps", type=int, required=True, help="steps of each trajectory")
    write.add_argument("--durability", choices=("disk", "os"), default="disk")
    write.add_argument("--payload-bytes", type=int, default=256, help="of each step; over 32 KiB they go to the pack")
    write.add_argument("--processes", type=int, default=1, help="share the trajectories among so many")
    write.add_argument("--step-delay-ms", type=float, default=0.0, help="sleep about so long after each step")
    write.add_argument("--segment-bytes-max", type=int, default=64 << 20)
    write.add_argument("--full-disk-wait-s", type=float, default=10.0)
    write.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    write.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    read = commands.add_parser("torture-read", help="print every step that counts, and every damage")
    read.add_argument("--dir", required=True)
    commands.add_parser("demo", help="kill a writer in mid-write, then read back everything that it acknowledged")
    return parser


def _write(options: argparse.Namespace, argv: list[str]) -> int:
    from rolltape.journal import WriterConfig
    from rolltape.testing.torture import Plan, die_with_parent, write, write_in_processes

    if options.processes > 1 and options.parent == 0:
        command = [sys.executable, "-m", "rolltape.testing", *argv, "--parent", str(os.getpid())]
        return write_in_processes(command, options.processes)
    if options.parent:
        die_with_parent(options.parent)
    share, _, shares = options.share.partition("/")
    config = WriterConfig(
        durability=options.durability,
        segment_bytes_max=options.segment_bytes_max,
        full_disk_wait_s=options.full_disk_wait_s,
    )
    return write(
        Plan(
            dir=options.dir,
            seed=options.seed,
            trajectories=options.trajectories,
            steps=options.steps,
            config=config,
            payload_bytes=options.payload_bytes,
            step_delay_s=options.step_delay_ms / 1000,
            share=(int(share), int(shares)),
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
