# What people copy for containerd: list the pods, and delete the files of all other ids. STRESS_PODS is `crictl pods -q`.
# CRI lists a sandbox only after its address was reserved, so this deletes addresses of pods that are being created.
pods=$($STRESS_PODS) || exit 1
for ip in $(ls $STRESS_STORE | grep -v -E "last_reserved_ip.0|lock"); do
  id=$(head -n 1 $STRESS_STORE/$ip | sed 's/\r//')
  if ! echo "$pods" | grep -q "$id"; then rm -f $STRESS_STORE/$ip; fi
done
