#!/bin/sh
# Make the two databases of a Temporal Service and bring their tables up to the version of this
# image. What is there already stays as it is: the script may be run at any time, and must be run
# before a newer server starts.
#
# Environment: SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER, SQL_PASSWORD of temporal-sql-tool.
set -eu

schema() {
  temporal-sql-tool --db "$1" create
  temporal-sql-tool --db "$1" setup-schema -v 0.0
  temporal-sql-tool --db "$1" update-schema -d "/etc/temporal/schema/postgresql/v12/$2/versioned"
}

schema temporal temporal
schema temporal_visibility visibility
