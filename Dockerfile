# The image of operator and workers: Python, the locked dependencies, Heddle.
# It holds the development tools too, because there is one lock; about 6 GB.
# BASE: any image with Python 3.11 to 3.13 and pip.
ARG BASE=docker.io/library/python:3.11-slim
FROM ${BASE}

WORKDIR /heddle
COPY requirements.lock ./
RUN awk '/^uv==/ { on = 1 } on { print; if (!/\\$/) exit }' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes -r uv.lock \
    && uv pip install --system --no-cache --compile-bytecode --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY migration migration
COPY worker worker
COPY heddle_operator heddle_operator
COPY profiles profiles
# The planner's kernel is compiled here, for any CPU of the architecture.
ENV NUMBA_CPU_NAME=generic
RUN uv pip install --system --no-cache --no-deps --no-build-isolation -e . \
    && python3 -m compileall -q planner migration worker heddle_operator \
    && python3 -m planner.cli.warm_up

# One thread for each rank: gloo and OpenMP may not start pools of their own beside the others.
# torch asks for the user's name, which a pod's numeric user does not have.
ENV OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    USER=heddle \
    HOME=/tmp
USER 65532:65532
ENTRYPOINT ["heddle"]
