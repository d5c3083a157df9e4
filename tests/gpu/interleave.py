"""Runs bench_model and its peer turn by turn on one GPU and says how they compare.

    python3 tests/gpu/interleave.py "BENCH_MODEL" CONFIG.json [PAIRS] [COMMAND ...]

Both keep their model; each command is answered by one, then by the other, PAIRS times, and a line gives the medians, the median of
the ratios of neighbours and their spread. One peer with sdpa, one with eager attention; the better one counts.
"""
import json, subprocess, sys


def start(argv):
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return p


def ask(p, command):
    if command:
        p.stdin.write(command + "\n")
        p.stdin.flush()
    while True:
        line = p.stdout.readline()
        if not line:
            return None
        if line.startswith("{"):
            return json.loads(line)
        print(line.rstrip(), flush=True)
        if not command:
            return None


def median(x):
    x = sorted(x)
    return x[len(x) // 2] if len(x) % 2 else (x[len(x) // 2 - 1] + x[len(x) // 2]) / 2


def main():
    bench, config = sys.argv[1:3]
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    commands = sys.argv[4:] or ["train,4,1024", "rollout,1,128,64", "rollout,64,128,64"]
    ours = start(bench.split() + [config, "-"])
    peers = {a: start([sys.executable, __file__.replace("interleave", "peer"), config, a]) for a in ("sdpa", "eager")}
    ask(ours, None)
    for p in peers.values():
        ask(p, None)
    failed = 0
    for command in commands:
        speed, ratios = {"ours": []}, {}
        for _ in range(pairs):
            mine = ask(ours, command)
            if mine is None:
                print("%-20s ours failed" % command)
                return 1
            speed["ours"].append(mine["tok_s"])
            for name, p in list(peers.items()):
                theirs = ask(p, command)
                if theirs is None:
                    print("%-20s peer %s failed" % (command, name), flush=True)
                    failed = 1
                    del peers[name]
                    continue
                speed.setdefault(name, []).append(theirs["tok_s"])
                ratios.setdefault(name, []).append(mine["tok_s"] / theirs["tok_s"])
        best = max((k for k in speed if k != "ours"), key=lambda k: median(speed[k]), default=None)
        print("%-20s ours %9.1f tok/s" % (command, median(speed["ours"])) +
              "".join("  %s %9.1f" % (k, median(v)) for k, v in speed.items() if k != "ours") +
              ("  ratio to %s %.2f (%.2f to %.2f)" % (best, median(ratios[best]), min(ratios[best]), max(ratios[best])) if best else ""),
              flush=True)
    for p in [ours, *peers.values()]:
        p.stdin.close()
        p.wait()
    return failed


sys.exit(main())
