# The widely copied shell one-liner that removes leaked addresses, unchanged except for its two paths and line breaks.
# It lists containers first and addresses afterwards, takes no lock and checks nothing twice: it removes every address
# that was reserved in between. The stress test shows this failure.
all_containers=$(docker ps -a -q);for ip in $(ls $STRESS_STORE/ |grep -v -E "last_reserved_ip.0|lock");do
docker_id=$(head -n 1 $STRESS_STORE/$ip| sed 's/\r//');
if [ -z "${docker_id}" -o -z "$(echo ${all_containers} | grep "${docker_id:0:8}")" ];then echo $ip;
if [ -n "${docker_id}" ];then
rm -f $STRESS_CACHE/kubenet-${docker_id}-eth0 $STRESS_CACHE/kubenet-loopback-${docker_id}-lo;fi;
rm -f $STRESS_STORE/$ip; fi;done
