# The shell one-liner that people copy to give leaked addresses back, letter for letter but for its two paths and its line
# breaks. It lists the containers first and the addresses after them, takes no lock, and looks at nothing twice: whatever
# gets an address in between, it takes away. It is here to be seen to fail.
all_containers=$(docker ps -a -q);for ip in $(ls $TORTURE_STORE/ |grep -v -E "last_reserved_ip.0|lock");do
docker_id=$(head -n 1 $TORTURE_STORE/$ip| sed 's/\r//');
if [ -z "${docker_id}" -o -z "$(echo ${all_containers} | grep "${docker_id:0:8}")" ];then echo $ip;
if [ -n "${docker_id}" ];then
rm -f $TORTURE_CACHE/kubenet-${docker_id}-eth0 $TORTURE_CACHE/kubenet-loopback-${docker_id}-lo;fi;
rm -f $TORTURE_STORE/$ip; fi;done
