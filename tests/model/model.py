#!/usr/bin/env python3
"""Explicit-state model of Rolltape's epoch / attempt / mutation protocol (docs/design.md, sections 4 and 6).

One trajectory: step 0 (repeatable), step 1 (mutation), outcome. Process slots may stop anywhere (pausing is just not
being scheduled), be killed (the slot restarts as a fresh process) or lose power together. BFS, so that the first trace
found is a shortest one.    python3 model.py [scenario ...]      (no argument: all of them)
"""

import itertools
import time
from collections import deque, namedtuple
from functools import cache

# ---- the rules under test: the design as written, and its amendments -------------------------------------------------
WRITTEN = dict(
    take=False,  # a `take` line on disk, then the journals are read (again), then the attempt record
    outcheck=False,  # ownership checked between outcome record and acknowledgement; then an `accepted` line
    ownepoch=False,  # the ownership check also looks at newer attempts of its own epoch
    claimsync=False,  # claims/ is synced before anything is written under the claimed number
    dirsync=False,  # continuing syncs the directory entries as well as the files it relies on
    intentsync=False,  # at durability os: intents and attempt records are synced all the same
    desc=False,  # journals are read from the highest epoch down
    judgefirst=False,  # an owner is judged before the read that names the point, not after it
    syncread=False,  # an outcome found in another's journal is synced before it is believed
)
AMENDED = {k: True for k in WRITTEN}

P = namedtuple("P", "pc e a seq pos v doubt owned snap cont z judged")
FRESH = P("list", 0, 0, 0, 0, (0, 0), 0, (), (), (), (), ())
# claims[e-1]: 0 absent, 1 created, 2 its directory entry on disk.   segs[e-1]: (entry as in claims, records, synced)
# g: kills, cuts, wrong judgements, retries, executions of step 0, effects, late effect?, acked steps, acked outcomes,
#    acknowledged length per epoch
S = namedtuple("S", "claims segs procs g")
G = namedtuple("G", "kills cuts wrong retry ex0 eff late ack out acklen waswrong")


class Bad(Exception):
    pass


# ---- reading: pure functions of the records that a reader saw --------------------------------------------------------
@cache
def digest(logs):
    """attempts {(e,a): (cont, items)}, open takes, accepted outcomes."""
    att, takes, acc = {}, set(), {}
    for i, log in enumerate(logs):
        e = i + 1
        for r in log:
            k = (e, r[1])
            if r[0] == "A":
                att[k] = (r[2], [])
                takes.discard(k)
            elif r[0] == "T":
                takes.add(k)
            elif r[0] == "W":
                takes.discard(k)
            elif r[0] == "F":
                acc[k] = r[2]
            else:
                att[k][1].append(r)
    return att, frozenset(takes), acc


View = namedtuple("View", "damaged newest last v pos doubt outcome final")


@cache
def read(logs):
    """The reading rule. Items: ('S',a,seq,val) step 0; 'I' intent, 'N' not sent, 'D' done, 'O' outcome."""
    att, _takes, acc = digest(logs)
    newest = max(att) if att else None
    if acc:  # amended rule: an accepted outcome stands
        return View(False, newest, 0, min(acc.values()), 3, 0, min(acc.values()), True)
    if not att:
        return View(False, None, 0, (0, 0), 0, 0, None, False)
    chain, k, upto = [], newest, 99
    while k is not None:
        if k not in att:
            return View(True, newest, 0, (0, 0), 0, 0, None, False)
        cont, items = att[k]
        have = [r for r in items if r[2] <= upto]
        if upto != 99 and len(have) < upto:  # the named point isn't there: a gap
            return View(True, newest, 0, (0, 0), 0, 0, None, False)
        chain[:0] = have
        k, upto = (cont[:2], cont[2]) if cont else (None, 0)
    v, pos, doubt, out = [0, 0], 0, 0, None
    for r in chain:
        if r[0] == "S":
            v[0], pos = r[3], 1
        elif r[0] in "IN":
            doubt = int(r[0] == "I")
        elif r[0] == "D":
            v[1], pos, doubt = r[3], 2, 0
        elif r[0] == "O":
            out = r[3]
    return View(False, newest, len(att[newest][1]), tuple(v), pos, doubt, out, False)


def logs_of(s):
    return tuple(x[1] for x in s.segs)


# ---- the transition relation -----------------------------------------------------------------------------------------
class Model:
    def __init__(
        self,
        rules,
        n=2,
        epochs=3,
        kills=1,
        cuts=0,
        wrong=1,
        retry=0,
        dur="disk",
        probe=False,
        nonatomic=False,
        goals=("I1", "I2", "I3", "I4", "I5", "I6", "I7"),
    ):
        self.r, self.n, self.E, self.dur, self.probe, self.nonatomic = (
            dict(WRITTEN, **rules),
            n,
            epochs,
            dur,
            probe,
            nonatomic,
        )
        self.init = S(
            (0,) * epochs,
            ((0, (), 0),) * epochs,
            (FRESH,) * n,
            G(kills, cuts, wrong, retry, 0, 0, 0, 0, (), (0,) * epochs, 0),
        )
        self.goals = goals

    def need(self, goal, ok, msg):
        if goal in self.goals and not ok:
            raise Bad(f"{goal}: {msg}")

    # -- file system
    def put(self, s, e, rec):
        d, recs, n = s.segs[e - 1]
        return s._replace(segs=(*s.segs[: e - 1], (d or 1, (*recs, rec), n), *s.segs[e:]))

    def sync(self, s, e):  # a writer syncs its own segment, its directories once
        d, recs, _n = s.segs[e - 1]
        return s._replace(segs=(*s.segs[: e - 1], (2 if d else 0, recs, len(recs)), *s.segs[e:]))

    def acked(self, s, e):  # the record just written is acknowledged
        n = len(s.segs[e - 1][1])
        return s._replace(g=s.g._replace(acklen=(*s.g.acklen[: e - 1], n, *s.g.acklen[e:])))

    def newer(self, s, e, a):
        att, takes, _ = digest(logs_of(s))
        return int(any(k > (e, a) for k in set(att) | takes))

    def superseded(self, s, e, a):
        """The ownership check, on disk. 2: stop. 1: a newer take of a live epoch is undecided, look again. 0: go."""
        att, takes, _ = digest(logs_of(s))
        new = (lambda k: k > (e, a)) if self.r["ownepoch"] else (lambda k: k[0] > e)
        if any(map(new, att)) or any(new(k) and not self.live(s, k[0]) for k in takes):
            return 2
        return 1 if any(map(new, takes)) else 0

    def outcome(self, s, v):
        self.need("I6", all(o == v for o in s.g.out), f"two different outcomes acknowledged: {s.g.out} and {v}")
        return s._replace(g=s.g._replace(out=tuple(sorted(set(s.g.out) | {v}))))

    def succ(self, s):
        for i in range(self.n):
            p = s.procs[i]
            for label, s2, p2 in self.step(s, p):
                procs = list(s2.procs)
                procs[i] = p2
                yield f"P(e{p.e or '-'},a{p.a}) {label}", s2._replace(procs=tuple(sorted(procs)))
            if s.g.kills and p.pc != "list" and p.pc != "X":
                procs = list(s.procs)
                procs[i] = FRESH
                yield (
                    f"KILL P(e{p.e},a{p.a}) at {p.pc}",
                    s._replace(procs=tuple(sorted(procs)), g=s.g._replace(kills=s.g.kills - 1)),
                )
        if self.dur == "os":  # background sync
            for e in range(1, self.E + 1):
                d, recs, n = s.segs[e - 1]
                if d and n < len(recs):
                    yield f"background sync of e{e}", self.sync(s, e)
        if s.g.cuts:
            opts = []
            for d, recs, n in s.segs:
                o = [(2, recs[:k], k) for k in range(n, len(recs) + 1)] if d else [(0, (), 0)]
                opts.append([*o, (0, (), 0)] if d == 1 else o)
            copts = [(0, 2) if c == 1 else (c,) for c in s.claims]
            for segs in itertools.product(*opts):
                for cl in itertools.product(*copts):
                    al = s.g.acklen
                    if self.dur == "os":  # os: nothing is promised across a power cut
                        al = tuple(min(x, len(y[1])) for x, y in zip(al, segs, strict=False))
                    yield (
                        "POWER CUT",
                        S(
                            cl,
                            segs,
                            (FRESH,) * self.n,
                            s.g._replace(
                                cuts=s.g.cuts - 1,
                                acklen=al,
                                ack=s.g.ack if self.dur == "disk" else 0,
                                out=s.g.out if self.dur == "disk" else (),
                            ),
                        ),
                    )

    def live(self, s, e):
        return any(e in q.owned for q in s.procs)

    def step(self, s, p):
        r, g, pc, disk = self.r, s.g, p.pc, self.dur == "disk"
        X = FRESH._replace(pc="X", z=p.z, owned=p.owned if p.z else ())
        if pc == "list":  # claims and journals: the highest number in either
            m = max([k + 1 for k in range(self.E) if s.claims[k] or (r["claimsync"] and s.segs[k][0])] or [0])
            if m < self.E:
                yield "lists claims", s, p._replace(pc="create", cont=(m + 1,))
            else:
                yield "gives up (bound on epochs)", s, X
        elif pc == "create":
            e = p.cont[0]
            if s.claims[e - 1]:
                yield f"claim {e} exists", s, p._replace(pc="list", cont=())
            else:
                self.need(
                    "I7", not s.segs[e - 1][1], f"epoch {e} is used twice: its claim was lost, its journal was not"
                )
                s2 = s._replace(claims=(*s.claims[: e - 1], 1, *s.claims[e:]))
                p2 = p._replace(e=e, a=0, owned=(*p.owned, e), cont=())
                yield f"creates claim {e}", s2, p2._replace(pc="csync" if r["claimsync"] else "read")
        elif pc == "csync":
            yield "syncs claims/", s._replace(claims=tuple(c and 2 for c in s.claims)), p._replace(pc="read")
        elif pc in ("read", "read2"):
            yield from self.reading(s, p, X)
        elif pc == "take":
            yield "writes take", self.put(s, p.e, ("T", p.a)), p._replace(pc="tsync")
        elif pc == "tsync":
            yield "syncs take", self.sync(s, p.e), p._replace(pc="read2")
        elif pc == "withdraw":
            yield "withdraws its take", self.sync(self.put(s, p.e, ("W", p.a)), p.e), X
        elif pc == "rely":  # sync what is relied on; the point named is the one that was read
            segs, cl = list(s.segs), s.claims
            for k in range(self.E):
                d, recs, _n = segs[k]
                if d and recs:
                    segs[k] = (2 if r["dirsync"] else d, recs, len(recs))
            if r["dirsync"]:
                cl = tuple(c and 2 for c in cl)
            yield "syncs what it relies on", s._replace(segs=tuple(segs), claims=cl), p._replace(pc="attempt")
        elif pc == "attempt":
            yield (
                f"writes attempt record, continues {p.cont}",
                self.put(s, p.e, ("A", p.a, p.cont)),
                p._replace(pc="async", cont=()),
            )
        elif pc == "async":
            yield (
                "attempt record acknowledged",
                self.acked(self.sync(s, p.e) if disk or r["intentsync"] else s, p.e),
                p._replace(pc="run"),
            )
        elif pc == "run":
            yield from self.run(s, p, X)
        elif pc == "w0":
            yield "writes step 0", self.put(s, p.e, ("S", p.a, p.seq + 1, p.v[0])), p._replace(pc="s0", seq=p.seq + 1)
        elif pc == "s0":
            s2 = self.acked(self.sync(s, p.e) if disk else s, p.e)
            yield "step 0 acknowledged", s2._replace(g=s2.g._replace(ack=s2.g.ack | 1)), p._replace(pc="run", pos=1)
        elif pc == "isync":
            yield (
                "intent acknowledged",
                self.acked(self.sync(s, p.e) if disk or r["intentsync"] else s, p.e),
                p._replace(pc="chk"),
            )
        elif pc == "chk":
            sup = self.superseded(s, p.e, p.a)
            if sup == 2:
                yield "ownership check: superseded, stops", s, X
            elif not sup:
                yield "ownership check passes", s, p._replace(pc="eff", cont=(self.newer(s, p.e, p.a),))
        elif pc == "eff":
            yield "EFFECT", self.effect(s, p.e, p.a, p.cont[0]), p._replace(pc="wD", v=(p.v[0], g.eff + 1), cont=())
        elif pc == "wD":
            yield "writes done", self.put(s, p.e, ("D", p.a, p.seq + 1, p.v[1])), p._replace(pc="dsync", seq=p.seq + 1)
        elif pc == "dsync":
            s2 = self.acked(self.sync(s, p.e) if disk else s, p.e)
            yield (
                "mutation acknowledged",
                s2._replace(g=s2.g._replace(ack=s2.g.ack | 2)),
                p._replace(pc="run", pos=2, doubt=0),
            )
        elif pc == "osync":
            s2 = self.acked(self.sync(s, p.e) if disk else s, p.e)
            yield "outcome on disk", s2, p._replace(pc="ochk" if r["outcheck"] else "oack")
        elif pc == "ochk":
            sup = self.superseded(s, p.e, p.a)
            if sup == 2:
                yield "outcome check: superseded, not acknowledged", s, X
            elif not sup:
                yield "outcome check passes", s, p._replace(pc="wF")
        elif pc == "wF":
            yield "writes accepted", self.put(s, p.e, ("F", p.a, p.v)), p._replace(pc="fsync")
        elif pc == "fsync":
            yield "accepted on disk", self.acked(self.sync(s, p.e) if disk else s, p.e), p._replace(pc="oack")
        elif pc == "oack":
            if r["outcheck"]:
                self.need("I2", read(logs_of(s)).v == p.v, "the completed lineage isn't what its rollout saw")
            yield f"OUTCOME {p.v} acknowledged", self.outcome(s, p.v), X
        # a call of an earlier attempt that could not be cancelled (a thread)
        if p.z:
            ze, za, zpc, was = p.z

            def end():
                return p._replace(z=(), owned=() if pc == "X" else p.owned)

            if zpc == "chk":
                if self.superseded(s, ze, za):
                    yield f"late call of a{za}: check stops it", s, end()
                else:
                    yield f"late call of a{za}: check passes", s, p._replace(z=(ze, za, "eff", self.newer(s, ze, za)))
            else:
                yield f"late call of a{za}: EFFECT", self.effect(s, ze, za, was), end()
        if g.retry and pc in ("chk", "eff", "run") and not p.z:
            z = (p.e, p.a, pc, p.cont[0] if p.cont else 0) if pc != "run" else ()
            q = FRESH._replace(e=p.e, a=p.a, owned=p.owned, z=z)
            s2 = s._replace(g=g._replace(retry=g.retry - 1))
            if r["take"]:
                yield f"retry from {pc}: opens again", s2, q._replace(pc="read")
            else:
                yield (
                    f"retry from {pc}",
                    s2,
                    q._replace(
                        pc="attempt",
                        a=p.a + 1,
                        cont=(p.e, p.a, p.seq),
                        v=p.v,
                        pos=p.pos,
                        doubt=int(pc != "run") or p.doubt,
                    ),
                )

    def effect(self, s, e, a, was):
        late = int(self.newer(s, e, a) and not was)
        g = s.g._replace(eff=s.g.eff + 1, late=s.g.late or late)
        # the documented window: somebody superseded this attempt between its check and its effect
        if not self.probe:
            self.need("I3", g.eff < 2, "the mutation happened twice, nobody having asked its author")
        self.need("I3", g.eff < 2 or g.late, "the mutation happened twice with no pause between check and effect")
        return s._replace(g=g)

    def reading(self, s, p, X):
        r, g = self.r, s.g
        logs = logs_of(s)
        if self.nonatomic:  # one file at a time; a file only grows, so a length is a snapshot
            snap = p.snap or (-1,) * self.E
            done = [k for k in range(self.E) if snap[k] >= 0]
            todo = [
                k
                for k in range(self.E)
                if s.segs[k][1] and (not done or (k < min(done) if r["desc"] else k > max(done)))
            ]
            if todo:
                k = todo[-1] if r["desc"] else todo[0]
                alive = snap[self.E] if p.snap else tuple(e for q in s.procs for e in q.owned)
                yield (
                    f"reads journal {k + 1}",
                    s,
                    p._replace(snap=(*snap[:k], len(s.segs[k][1]), *snap[k + 1 : self.E], alive)),
                )
                return
            alive = snap[self.E] if p.snap and r["judgefirst"] else None
            logs, p = tuple(x[1][: max(n, 0)] for x, n in zip(s.segs, snap, strict=False)), p._replace(snap=())
        else:
            alive = None
        v = read(logs)
        if v.damaged:  # what is really there was checked in invariants()
            raise Bad("I5: a reader that met a write sees a gap, and parks an intact trajectory")
        if v.final or (v.outcome is not None and not r["outcheck"]):
            if r["syncread"]:
                s = s._replace(
                    claims=tuple(c and 2 for c in s.claims), segs=tuple((d and 2, x, len(x)) for d, x, n in s.segs)
                )
            yield f"returns recorded outcome {v.outcome}", self.outcome(s, v.outcome), X
            return
        att, takes, _ = digest(logs)
        me = (p.e, p.a + 1 if p.pc == "read" else p.a)
        top = max([k for k in set(att) | takes] or [(0, 0)])
        if p.pc == "read2" and top > me:
            yield "a newer take or attempt: yields", s, p._replace(pc="withdraw")
            return
        label, s2, judged = f"reads: newest {v.newest} at {v.last}", s, p.judged

        def held(ks):
            lives = (lambda e: self.live(s, e)) if alive is None else (lambda e: e in alive)
            return {k[0] for k in ks if k != me and k[0] not in p.owned + judged and lives(k[0])}

        busy, waits = held({v.newest} if v.newest else ()), held(takes)
        if busy or waits:  # its attempt, or an undecided take, is of a live epoch
            if busy and p.pc == "read2":
                yield "in use", s, p._replace(pc="withdraw")
            if self.nonatomic:
                yield "waits, reads again", s, p
            if g.wrong < len(busy | waits):
                return
            label += f", WRONGLY judges {sorted(busy | waits)} dead"
            s2 = s._replace(g=g._replace(wrong=g.wrong - len(busy | waits), waswrong=1))
            judged = tuple(sorted(set(judged) | busy | waits))
        if p.pc == "read" and top[0] > p.e:
            yield label + ", needs a higher epoch", s2, p._replace(pc="list", judged=judged)
            return
        q = p._replace(
            a=me[1],
            seq=0,
            pos=3 if v.outcome is not None else v.pos,
            v=v.v,
            doubt=v.doubt,
            judged=judged,
            cont=(*v.newest, v.last) if v.newest else (),
        )
        if r["take"] and p.pc == "read":
            yield label, s2, q._replace(pc="take", cont=())
        else:
            yield label, s2, q._replace(pc="rely")

    def run(self, s, p, X):
        g = s.g
        if p.pos == 0:
            self.need(
                "I1", not (g.ack & 1) or g.waswrong, "an acknowledged step runs again though nobody was misjudged"
            )
            yield "runs step 0", s._replace(g=g._replace(ex0=g.ex0 + 1)), p._replace(pc="w0", v=(g.ex0 + 1, 0))
        elif p.pos == 1:
            if p.doubt:
                yield "in doubt: parks", s, X
                if self.probe:
                    if g.eff:
                        yield "probe: it happened", s, p._replace(pc="wD", doubt=0, v=(p.v[0], g.eff))
                    else:
                        s2 = self.sync(self.put(s, p.e, ("N", p.a, p.seq + 1)), p.e)
                        yield "probe: it did not happen", s2, p._replace(doubt=0, seq=p.seq + 1)
            else:
                yield (
                    "writes intent",
                    self.put(s, p.e, ("I", p.a, p.seq + 1)),
                    p._replace(pc="isync", seq=p.seq + 1, doubt=1),
                )
        elif p.pos == 3:  # an outcome on disk that nobody accepted: it is taken over as it stands
            yield "takes the outcome over", s, p._replace(pc="ochk" if self.r["outcheck"] else "oack")
        else:
            yield (
                f"writes outcome {p.v}",
                self.put(s, p.e, ("O", p.a, p.seq + 1, p.v)),
                p._replace(pc="osync", seq=p.seq + 1),
            )

    def invariants(self, s):
        for e in range(self.E):
            self.need("I4", len(s.segs[e][1]) >= s.g.acklen[e], f"an acknowledged record of epoch {e + 1} is gone")
        v = read(logs_of(s))
        self.need(
            "I5",
            not v.damaged,
            "a named point is missing after nothing worse than a kill or power cut: parked for ever",
        )
        if s.g.out:
            self.need(
                "I6",
                v.outcome == s.g.out[0] and (v.final or not self.r["outcheck"]),
                f"outcome {s.g.out[0]} was acknowledged; a reader now sees {v.outcome} (newest {v.newest})",
            )

    def check(self, limit=170):
        seen, todo, t0 = {self.init: None}, deque([self.init]), time.time()
        at, label = self.init, ""
        try:
            while todo:
                at, moves, label = todo.popleft(), 0, ""
                self.invariants(at)
                for label, nxt in self.succ(at):
                    moves += label[0] in "Pb" and label[1] != "O"
                    if nxt not in seen:
                        seen[nxt] = (at, label)
                        todo.append(nxt)
                self.need(
                    "I5", moves or all(q.pc == "X" for q in at.procs), "deadlock: nobody can move, somebody waits"
                )
                if time.time() - t0 > limit:
                    return f"NOT FINISHED, no violation in {len(seen)} states", []
        except Bad as b:
            path = []
            while seen[at]:
                at, lab = seen[at]
                path.append(lab)
            return f"VIOLATED {b} ({len(seen)} states)", path[::-1]
        return f"passes ({len(seen)} states)", []


BASE = dict(n=2, epochs=3, kills=1, wrong=1)
SCENARIOS = {
    "kill+misjudge": BASE,
    "twokills": dict(BASE, kills=2, wrong=2),
    "three": dict(n=3, epochs=3, kills=1, wrong=1),
    "powercut": dict(n=2, epochs=3, kills=1, cuts=1, wrong=0),
    "powercut os": dict(n=2, epochs=3, kills=0, cuts=1, wrong=0, dur="os"),
    "powercut os kill": dict(n=1, epochs=3, kills=1, cuts=1, wrong=0, dur="os"),
    "retry": dict(BASE, epochs=2, retry=1),
    "retry probe": dict(BASE, epochs=2, retry=1, probe=True),
    "probe": dict(BASE, probe=True),
    "nonatomic": dict(BASE, nonatomic=True),
}

if __name__ == "__main__":
    import argparse

    o = argparse.ArgumentParser()
    o.add_argument("scenario", nargs="*")
    o.add_argument("--written", action="store_true", help="the design as written (default: amended)")
    o.add_argument("--without", default="", help="amended, less these amendments (comma-separated)")
    o.add_argument("--goals", default="I1,I2,I3,I4,I5,I6,I7")
    o.add_argument("--limit", type=float, default=170)
    o = o.parse_args()
    rules = WRITTEN if o.written else {k: v and k not in o.without.split(",") for k, v in AMENDED.items()}
    for name in o.scenario or SCENARIOS:
        t = time.time()
        result, path = Model(rules, goals=o.goals.split(","), **SCENARIOS[name]).check(o.limit)
        print(f"{name}: {result} in {time.time() - t:.1f} s", *path, sep="\n    ", flush=True)
