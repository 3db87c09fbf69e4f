import sys, time
sys.path.insert(0, "/work/main")
from tests.proof import scenarios, laws
from tests.proof.explorer import Explorer, Counterexample
for name in sys.argv[1:]:
    s = getattr(scenarios, name)
    t = time.monotonic()
    try:
        print(name, Explorer(s).explore(), f"{time.monotonic()-t:.1f}s", flush=True)
    except Counterexample as e:
        print(name, e)
