# The image of operator and workers: Python, the locked dependencies, Heddle.
# It holds the development tools too, because there is one lock; about 6 GB.
FROM python:3.11-slim

WORKDIR /heddle
COPY requirements.lock ./
RUN awk '/^uv==/ { on = 1 } on { print; if (!/\\$/) exit }' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes -r uv.lock \
    && uv pip install --system --no-cache --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY migration migration
COPY worker worker
COPY heddle_operator heddle_operator
COPY profiles profiles
RUN uv pip install --system --no-cache --no-deps --no-build-isolation -e .

# gloo and numba may not start threads of their own beside the ranks of one pod.
ENV OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1
ENTRYPOINT ["heddle"]
