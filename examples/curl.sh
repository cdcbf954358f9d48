#!/usr/bin/env bash
# Asks a running livescale by curl: its models, a completion, a stream, a conversation.
set -euo pipefail
url=${LIVESCALE_URL:-http://localhost:8000}
model=${LIVESCALE_MODEL:-tiny}
ask() { curl --silent --show-error --fail-with-body --no-buffer -H "Authorization: Bearer ${LIVESCALE_KEY:-none}" \
    -H 'content-type: application/json' "$@"; echo; }

ask "$url/v1/models"
ask "$url/v1/completions" -d '{"model": "'"$model"'", "prompt": "Once upon", "max_tokens": 8}'
ask "$url/v1/completions" -d '{"model": "'"$model"'", "prompt": "Once upon", "max_tokens": 8, "stream": true}'
ask "$url/v1/chat/completions" -d '{"model": "'"$model"'", "max_tokens": 8,
  "messages": [{"role": "user", "content": "Hello"}]}'
