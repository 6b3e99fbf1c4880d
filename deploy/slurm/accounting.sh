# shellcheck shell=bash disable=SC2154  # the settings of a cluster are dev-cluster's
# Sourced by dev-cluster: slurmdbd and the database behind it, both on the login node, as with --accounting.

# write_accounting: DIR/etc/slurmdbd.conf, and what slurm.conf says of it.
write_accounting() {
  sed -e '/^##/d' -e "s|@dir@|$dir|g; s|@name@|$name|g; s|@address@|$address|g" \
    "$here/slurm/slurmdbd.conf.in" >"$dir/etc/slurmdbd.conf"
  chmod 600 "$dir/etc/slurmdbd.conf"  # slurmdbd wants it so
  # Which munged vouches for those who speak with slurmdbd is said in the place of a password.
  printf '%s\n' AccountingStorageType=accounting_storage/slurmdbd "AccountingStorageHost=$address" AccountingStoragePort=6819 \
    "AccountingStoragePass=$dir/munge.socket" AccountingStorageEnforce=associations,limits,qos >>"$dir/etc/slurm.conf"
}

# start_database: a private mariadbd without a port; only root reaches its socket. What a crash would cost does not matter.
start_database() {
  local home=$dir/nodes/login data=$dir/nodes/login/db
  local small=(--no-defaults --user=root --datadir="$data" --tmpdir="$home/tmp" --innodb-buffer-pool-size=16M
    --innodb-log-file-size=8M --innodb-doublewrite=0 --innodb-use-native-aio=0 --loose-debug-no-sync
    --max-connections=20 --table-open-cache=200)
  mkdir -m 700 "$data"
  # In the node, so that `down` ends it too.
  start_daemon login mariadb-install-db "${small[@]}" --auth-root-authentication-method=normal --skip-test-db ||
    fail "mariadb-install-db makes no database: $(last_words "$home/console.log")"
  start_daemon login setsid --fork mariadbd "${small[@]}" --skip-networking --socket="$data/socket" \
    --pid-file="$home/mariadbd.pid" --log-error="$home/mariadbd.log" || fail "mariadbd does not start: $(last_words "$home/console.log")"
  wait_until 60 grep -qs 'ready for connections' "$home/mariadbd.log" || fail "mariadbd does not start: $(last_words "$home/mariadbd.log")"
}

accounting_answers() { sacctmgr --noheader --readonly show cluster >/dev/null 2>&1; }

start_slurmdbd() {
  local home=$dir/nodes/login
  daemon_gone login slurmdbd || fail "slurmdbd runs already"
  if ! start_daemon login env "SLURM_CONF=$SLURM_CONF" "MYSQL_UNIX_PORT=$home/db/socket" slurmdbd ||
    ! wait_until 30 accounting_answers; then
    fail "slurmdbd does not answer: $(last_words "$home"/{console,slurmdbd}.log)"
  fi
}

# start_accounting: all of it, and the account `lab`, in which root's jobs are unless they say otherwise.
start_accounting() {
  local words
  start_database
  start_slurmdbd
  for words in "add cluster $name" 'add account lab' 'add user root account=lab' 'modify user root set defaultaccount=lab'; do
    # shellcheck disable=SC2086  # words
    words=$(sacctmgr --immediate $words 2>&1) || fail "sacctmgr could not make the accounts: ${words//$'\n'/; }"
  done
}
