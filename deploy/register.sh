#!/bin/sh
# Set up the namespace for workers, once the Temporal Service answers.
#
# A server that has just opened its port may take some seconds more; exit status 5 says that
# nobody answered. Everything else is for a person to look at.
set -u

tries=30
while :; do
  garrison doctor --register
  status=$?
  tries=$((tries - 1))
  if [ "$status" -ne 5 ] || [ "$tries" -eq 0 ]; then
    exit "$status"
  fi
  sleep 2
done
