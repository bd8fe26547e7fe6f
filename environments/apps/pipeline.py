"""Release services through CI/CD: retry flaky jobs, promote green builds, roll back what fails."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

JOBS = ("build", "unit", "integration", "scan")
FLAKES = ("runner lost: node was preempted", "exit 137: out of memory on runner", "timeout while pulling image")
FAULTS = ("AssertionError: expected 200, got 500", "2 tests failed", "CVE of severity high in a dependency")


class Delivery(Records):
    """Tables: services, builds (with their jobs)."""

    @tool
    def list_services(self, page: int = 1) -> dict[str, Any]:
        """The services: build in production, error rate per mille now, freeze, builds that ran there before it."""
        return self.page([{"name": k, **s} for k, s in self.db["services"].items()], page)

    @tool
    def list_builds(self, service: str, page: int = 1) -> dict[str, Any]:
        """The builds of a service, newest first, with the states of their jobs: passed or failed."""
        self.row("services", service)
        rows = sorted(
            ((b["number"], k, b) for k, b in self.db["builds"].items() if b["service"] == service), reverse=True
        )
        brief = [
            {"id": k, "branch": b["branch"], "jobs": {j: s["state"] for j, s in b["jobs"].items()}} for _, k, b in rows
        ]
        return self.page(brief, page)

    @tool
    def read_log(self, build: str, job: str) -> str:
        """The end of a job's log."""
        return self._job(build, job)["log"]

    @tool
    def retry(self, build: str, job: str) -> str:
        """Run a failed job again, which costs money; answers with its new state."""
        row = self._job(build, job)
        if row["state"] == "passed":
            raise ToolError("it passed")
        row["tries"] += 1
        if build in self.task.info["flaky"] and row["log"] in FLAKES:
            row.update(state="passed", log="ok")
        return row["state"]

    def _job(self, build: str, job: str) -> dict[str, Any]:
        jobs = self.row("builds", build)["jobs"]
        if job not in jobs:
            raise ToolError(f"jobs are {', '.join(JOBS)}")
        return jobs[job]

    @tool
    def deploy(self, service: str, build: str) -> str:
        """Put a build of the service into production, a new or an old one."""
        row = self.row("services", service)
        if self.row("builds", build)["service"] != service:
            raise ToolError("it is a build of another service")
        row["production"] = build
        return "deployed"


class Pipeline(App):
    """Red is not red: a lost runner is retried, a failed test never; a freeze holds even for green builds."""

    id = "apps/pipeline"
    skills = ("operations", "tools")
    world = Delivery

    def draw(self, rng: random.Random, level: int) -> Draft:
        worst = rng.choice([10, 20, 30])
        db: dict[str, Any] = {"services": {}, "builds": {}}
        want: dict[str, Any] = {}
        flaky: list[str] = []
        names = [
            f"{a}-{b}" for a in ("cart", "mail", "price", "user", "stock", "media") for b in ("api", "worker", "web")
        ]
        services = rng.sample(names, (2, 5, 10)[level - 1])
        plan = pages("list_services", len(services))
        for service in services:
            numbers = sorted(rng.sample(range(100, 999), 3 + 2 * level))
            live = rng.randint(1, len(numbers) - 2)
            keys = [f"{service}#{n}" for n in numbers]
            for key, number in zip(keys, numbers, strict=True):
                jobs = {j: {"state": "passed", "log": "ok", "tries": 1} for j in JOBS}
                for job in rng.sample(JOBS, rng.choice([0, 0, 1, 1, 2]) if key in keys[live + 1 :] else 0):
                    jobs[job].update(state="failed", log=rng.choice([*FLAKES, *FAULTS]))
                branch = (
                    "main" if rng.random() < 0.7 or key in keys[: live + 1] else f"feature-{rng.choice(words.GOODS)}"
                )
                db["builds"][key] = {"service": service, "number": number, "branch": branch, "jobs": jobs}
                if rng.random() < 0.7:
                    flaky.append(key)
            freeze, rate = rng.random() < 0.25, rng.choice([0, 2, worst, worst + 1, worst * 2])
            before = rng.sample(keys[:live], rng.randint(1, live))
            db["services"][service] = {
                "production": keys[live], "error_rate": rate, "freeze": freeze, "ran_before": before,
            }  # fmt: skip
            if rate > worst:
                want[f"services/{service}/production"] = before[-1]
                plan.append(["deploy", {"service": service, "build": before[-1]}])
                continue
            if freeze:
                continue
            plan += pages("list_builds", len(keys), service=service)
            for key in reversed(keys[live + 1 :]):
                build = db["builds"][key]
                failed = {j: s for j, s in build["jobs"].items() if s["state"] == "failed"}
                if build["branch"] != "main":
                    continue
                plan += [["read_log", {"build": key, "job": j}] for j in failed]
                if any(s["log"] in FAULTS for s in failed.values()):
                    continue
                for job in failed:
                    plan.append(["retry", {"build": key, "job": job}])
                if failed:
                    after = {"state": "passed", "log": "ok"} if key in flaky else {}
                    want[f"builds/{key}/jobs"] = {
                        j: s | ({"tries": 2, **after} if j in failed else {}) for j, s in build["jobs"].items()
                    }
                if not failed or key in flaky:
                    want[f"services/{service}/production"] = key
                    plan.append(["deploy", {"service": service, "build": key}])
                    break
        text = (
            "Please run today's release. For each service:\n"
            f"1. If its error rate is above {worst} per mille, roll back: deploy the last build that ran there before "
            "the one in production (the last of `ran_before`), even in a freeze, and do nothing else with it.\n"
            "2. Otherwise, in a freeze, do nothing.\n"
            "3. Otherwise look at its builds of branch main that are newer than the one in production, from the "
            "newest on. If all jobs of a build have passed, deploy it and stop. If all its failed jobs failed for "
            "reasons of infrastructure (runner lost, out of memory on the runner, image pull), retry each of them "
            "once, and if all have passed then, deploy it and stop. If one failed for another reason (tests, "
            "vulnerabilities), retry none of that build. Go on to the next older build; if none is left, the service "
            "stays as it is.\n"
            "Answer `done`."
        )
        draft = self.draft(text, db, want, plan)
        draft.info["flaky"] = flaky
        return draft
