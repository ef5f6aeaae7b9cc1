#!/usr/bin/env bash
# Puts Markdown into one comment of a pull request: the one that an earlier run made, else a new one.
#
#     ci/comment.sh NUMBER FILE      with gh, GH_TOKEN and GITHUB_REPOSITORY
set -euo pipefail
marker='<!-- graphmem: the outcome of the memory gate -->'
comments="repos/$GITHUB_REPOSITORY/issues/$1/comments"
body=$(printf '%s\n\n%s' "$marker" "$(cat "$2")")
earlier=$(gh api --paginate "$comments" --jq ".[] | select(.body | startswith(\"$marker\")) | .id" | sed -n 1p)
if [ -n "$earlier" ]; then
  gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$earlier" --raw-field "body=$body"
else
  gh api --silent --method POST "$comments" --raw-field "body=$body"
fi
