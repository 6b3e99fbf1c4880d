# shellcheck shell=bash disable=SC2154  # dev-cluster sets the variables of a cluster
# Functions for dev-cluster --accounting: slurmdbd and its database, both on the login node.

# write_accounting: writes DIR/etc/slurmdbd.conf and the accounting settings of slurm.conf.
write_accounting() {
  sed -e '/^##/d' -e "s|@dir@|$dir|g; s|@name@|$name|g; s|@address@|$address|g" \
    "$here/slurm/slurmdbd.conf.in" >"$dir/etc/slurmdbd.conf"
  chmod 600 "$dir/etc/slurmdbd.conf"  # slurmdbd requires this mode
  # With auth/munge, AccountingStoragePass is the socket of munged.
  printf '%s\n' AccountingStorageType=accounting_storage/slurmdbd "AccountingStorageHost=$address" AccountingStoragePort=6819 \
    "AccountingStoragePass=$dir/munge.socket" AccountingStorageEnforce=associations,limits,qos >>"$dir/etc/slurm.conf"
}

# start_database: starts a private mariadbd without a port, whose socket only root can reach. It is not safe against crashes.
start_database() {
  local home=$dir/nodes/login data=$dir/nodes/login/db
  local small=(--no-defaults --user=root --datadir="$data" --tmpdir="$home/tmp" --innodb-buffer-pool-size=16M
    --innodb-log-file-size=8M --innodb-doublewrite=0 --innodb-use-native-aio=0 --loose-debug-no-sync
    --max-connections=20 --table-open-cache=200)
  mkdir -m 700 "$data"
  # Runs in the node, so that `down` stops it too.
  start_daemon login mariadb-install-db "${small[@]}" --auth-root-authentication-method=normal --skip-test-db ||
    fail "mariadb-install-db failed to create the database: $(last_words "$home/console.log")"
  start_daemon login setsid --fork mariadbd "${small[@]}" --skip-networking --socket="$data/socket" \
    --pid-file="$home/mariadbd.pid" --log-error="$home/mariadbd.log" || fail "mariadbd does not start: $(last_words "$home/console.log")"
  wait_until 60 grep -qs 'ready for connections' "$home/mariadbd.log" || fail "mariadbd does not start: $(last_words "$home/mariadbd.log")"
}

accounting_answers() { sacctmgr --noheader --readonly show cluster >/dev/null 2>&1; }

start_slurmdbd() {
  local home=$dir/nodes/login
  daemon_gone login slurmdbd || fail "slurmdbd already runs"
  if ! start_daemon login env "SLURM_CONF=$SLURM_CONF" "MYSQL_UNIX_PORT=$home/db/socket" slurmdbd ||
    ! wait_until 30 accounting_answers; then
    fail "slurmdbd does not answer: $(last_words "$home"/{console,slurmdbd}.log)"
  fi
}

# start_accounting: starts the database and slurmdbd, and creates `lab`, the default account of root's jobs.
start_accounting() {
  local words
  start_database
  start_slurmdbd
  for words in "add cluster $name" 'add account lab' 'add user root account=lab' 'modify user root set defaultaccount=lab'; do
    # shellcheck disable=SC2086  # splits $words
    words=$(sacctmgr --immediate $words 2>&1) || fail "sacctmgr cannot create the accounts: ${words//$'\n'/; }"
  done
}
