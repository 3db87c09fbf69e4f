{{/* The overlays that the values ask for, as a YAML list. */}}
{{- define "nodeleak.overlays" -}}
{{- $wanted := list
    (list "cleanup-exec" (has .Values.cleanup (list "exec" "auto")))
    (list "cleanup" (eq (toString .Values.cleanup) "auto"))
    (list "data-dir" .Values.dataDir)
    (list "docker" .Values.docker)
    (list "microk8s" .Values.microk8s)
    (list "openshift" .Values.openShift)
    (list "no-kubelet-volumes" (not .Values.kubeletVolumes))
    (list "no-device-plugins" (not .Values.devicePlugins))
    (list "no-api" (not .Values.api))
    (list "node-condition" .Values.nodeCondition)
    (list "metrics-tls" .Values.tls.secretName)
    (list "metrics-tls-client-ca" .Values.tls.clientCa)
    (list "prometheus-annotations" .Values.prometheusAnnotations)
}}
{{- range $wanted }}
{{- if index . 1 }}
- {{ index . 0 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Contradictions that a schema cannot name. */}}
{{- define "nodeleak.check" -}}
{{- $values := .Values }}
{{- if and .Values.tls.clientCa (not .Values.tls.secretName) }}
  {{- fail "tls.clientCa needs tls.secretName: clients show certificates over HTTPS only" }}
{{- end }}
{{- $names := keys .Values.env }}
{{- range .Values.extraEnv }}{{ $names = append $names .name }}{{ end }}
{{- if and (eq (toString .Values.cleanup) "auto") (has "NODELEAK_CLEANUP" $names) }}
  {{- fail "cleanup=auto and env.NODELEAK_CLEANUP contradict each other: remove one" }}
{{- end }}
{{- $brake := $values.env.NODELEAK_BRAKE | default "off" }}
{{- $readable := list "off" "nodeleak-brake" (printf "%s/nodeleak-brake" (include "nodeleak.namespace" .)) }}
{{- if and $values.rbac.create (not (has $brake $readable)) }}
  {{- fail (printf "env.NODELEAK_BRAKE=%s: the chart's Role lets the agent read nodeleak-brake alone: remove it, or use rbac.create=false with roles of your own" $brake) }}
{{- end }}
{{- $replaced := dict "LISTEN" "metricsPort and listenAddress" "TLS_CERT_FILE" "tls.secretName"
    "TLS_KEY_FILE" "tls.secretName" "TLS_CLIENT_CA_FILE" "tls.clientCa" }}
{{- range $setting, $value := $replaced }}
  {{- if has (printf "NODELEAK_%s" $setting) $names }}
    {{- fail (printf "NODELEAK_%s would not change probes and ports: use %s" $setting $value) }}
  {{- end }}
  {{- $option := printf "--%s" (lower $setting | replace "_" "-") }}
  {{- range $values.extraArgs }}
    {{- if eq $option (first (splitList "=" .)) }}
      {{- fail (printf "%s in extraArgs would not change probes and ports: use %s" $option $value) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if and (has .Values.listenAddress (list "127.0.0.1" "::1"))
    (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled .Values.prometheusAnnotations) }}
  {{- fail "listenAddress: Prometheus cannot scrape a loopback address: leave it empty, or disable the monitors and annotations" }}
{{- end }}
{{- if not .Values.api }}
  {{- range list "nodeCondition" "volumeAttachments" "clusterAutoscaler" }}
    {{- if index $values . }}{{ fail (printf "%s needs api=true: it reads or writes through the API server" .) }}{{ end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* An image reference: a registry of its own, or that of all charts, replaces the one in the repository. */}}
{{- define "nodeleak.image" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.image.registry | default .Values.global.imageRegistry }}
  {{- $parts := splitList "/" $repository }}
  {{- $first := first $parts }}
  {{- /* As docker reads a reference: the first part is a registry if it can be a host. */}}
  {{- if and (gt (len $parts) 1) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) }}
    {{- $repository = join "/" (rest $parts) }}
  {{- end }}
  {{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}
{{- end }}
{{- with .Values.image }}
{{- $repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Secrets for the image, as a YAML list. */}}
{{- define "nodeleak.pullSecrets" -}}
{{- $secrets := list }}
{{- range concat .Values.global.imagePullSecrets .Values.imagePullSecrets }}
  {{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- toYaml (uniq $secrets) }}
{{- end }}

{{/*
Merge the patches into a pod template, in place: (list $template $patches)
Entries of these lists have names, and a patch changes, adds or deletes the entry of its name, as in kustomize.
*/}}
{{- define "nodeleak.patch" -}}
{{- $template := index . 0 }}
{{- $agent := first $template.spec.containers }}
{{- $entries := dict "env" dict "volumeMounts" dict "volumes" dict }}
{{- range prepend (index . 1) (deepCopy $template) }}
  {{- $spec := .spec | default dict }}
  {{- $container := first ($spec.containers | default (list dict)) }}
  {{- range $name, $value := dig "metadata" "annotations" dict . }}
    {{- $_ := set $template.metadata.annotations $name $value }}
  {{- end }}
  {{- if hasKey $spec "automountServiceAccountToken" }}
    {{- $_ := set $template.spec "automountServiceAccountToken" $spec.automountServiceAccountToken }}
  {{- end }}
  {{- range $field, $value := $container.securityContext }}
    {{- $_ := set $agent.securityContext $field $value }}
  {{- end }}
  {{- range list "livenessProbe" "readinessProbe" }}
    {{- $get := index $agent . "httpGet" }}
    {{- range $field, $value := dig . "httpGet" dict $container }}{{ $_ := set $get $field $value }}{{ end }}
  {{- end }}
  {{- $lists := dict "env" $container.env "volumeMounts" $container.volumeMounts "volumes" $spec.volumes }}
  {{- range $list, $patched := $lists }}
    {{- $known := get $entries $list }}
    {{- range $patched }}
      {{- if eq (get . "$patch") "delete" }}
        {{- $_ := unset $known .name }}
      {{- else if eq $list "volumeMounts" }}
        {{- $_ := set $known .name (mergeOverwrite dict (get $known .name | default dict) .) }}
      {{- else }}
        {{- $_ := set $known .name . }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- range $list, $known := $entries }}
  {{- $sorted := list }}
  {{- range keys $known | sortAlpha }}{{ $sorted = append $sorted (get $known .) }}{{ end }}
  {{- $_ := set (ternary $template.spec $agent (eq $list "volumes")) $list $sorted }}
{{- end }}
{{- end }}

{{/* What the values change in the agent's container and its mounts, as a patch of a pod template. */}}
{{- define "nodeleak.values" -}}
{{- $env := list }}
{{- $probe := dict }}
{{- if .Values.listenAddress }}{{ $_ := set $probe "host" .Values.listenAddress }}{{ end }}
{{- if or .Values.listenAddress (ne (int .Values.metricsPort) 9747) }}
  {{- $host := ternary (printf "[%s]" .Values.listenAddress) .Values.listenAddress (contains ":" .Values.listenAddress) }}
  {{- $env = append $env (dict "name" "NODELEAK_LISTEN" "value" (printf "%s:%d" $host (int .Values.metricsPort))) }}
{{- end }}
{{- if not .Values.statusPage }}{{ $env = append $env (dict "name" "NODELEAK_PAGE" "value" "off") }}{{ end }}
{{- range $name, $value := .Values.env }}{{ $env = append $env (dict "name" $name "value" $value) }}{{ end }}
{{- $env = concat $env .Values.extraEnv }}
{{- $mounts := list }}
{{- with .Values.dataDir }}
  {{- /* What is below the node's /run is below /host/run in the container. */}}
  {{- $readOnly := not (has $.Values.cleanup (list "exec" "auto")) }}
  {{- $mount := dict "name" "data-dir" "mountPath" (regexReplaceAll "^/run/" . "/host/run/") }}
  {{- if $readOnly }}{{ $_ := set $mount "readOnly" true }}{{ end }}
  {{- $mounts = append $mounts $mount }}
{{- end }}
{{- $probes := dict "livenessProbe" (dict "httpGet" $probe) "readinessProbe" (dict "httpGet" $probe) }}
{{- $container := merge (dict "env" $env "volumeMounts" $mounts) $probes }}
{{- toYaml (dict "spec" (dict "containers" (list $container))) }}
{{- end }}

{{/* What the values change in the DaemonSet beside its pods' lists, in place: (list $ $daemonset) */}}
{{- define "nodeleak.pods" -}}
{{- $values := (index . 0).Values }}
{{- $root := index . 0 }}
{{- $spec := (index . 1).spec }}
{{- $template := $spec.template }}
{{- $pod := $template.spec }}
{{- $agent := first $pod.containers }}
{{- $_ := mergeOverwrite $template.metadata.labels (include "nodeleak.labels" $root | fromYaml) $values.podLabels }}
{{- range $name, $value := $values.podAnnotations }}{{ $_ := set $template.metadata.annotations $name $value }}{{ end }}

{{- with $values.updateStrategy }}{{ $_ := set $spec "updateStrategy" . }}{{ end }}
{{- /* Not `with`: 0 is a value. Null is missing, or was removed. */}}
{{- $owners := dict "revisionHistoryLimit" $spec "minReadySeconds" $spec "terminationGracePeriodSeconds" $pod }}
{{- range $name, $owner := $owners }}
  {{- with get $values $name | toString | regexFind "^[0-9]+$" }}{{ $_ := set $owner $name (int .) }}{{ end }}
{{- end }}
{{- $_ := set $pod "serviceAccountName" (include "nodeleak.serviceAccountName" $root) }}
{{- with include "nodeleak.pullSecrets" $root | fromYamlArray }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- with $values.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end }}
{{- with $values.priorityClassName }}{{ $_ := set $pod "priorityClassName" . }}{{ end }}
{{- range $kind, $rules := $values.affinity }}{{ $_ := set $pod.affinity $kind (deepCopy $rules) }}{{ end }}
{{- include "nodeleak.choosePool" (list $root $pod) }}
{{- range $name, $value := $values.nodeSelector }}{{ $_ := set $pod.nodeSelector $name $value }}{{ end }}

{{- $_ := set $agent "image" (include "nodeleak.image" $root) }}
{{- $_ := set $agent "imagePullPolicy" $values.image.pullPolicy }}
{{- $_ := set $agent "args" (concat $agent.args $values.extraArgs) }}
{{- range list "livenessProbe" "readinessProbe" }}
  {{- $probe := get $agent . }}
  {{- range $field, $value := get $values . }}{{ $_ := set $probe $field (int $value) }}{{ end }}
{{- end }}
{{- with $values.resources }}{{ $_ := set $agent "resources" . }}{{ end }}
{{- with $values.seLinuxOptions }}{{ $_ := set $agent.securityContext "seLinuxOptions" . }}{{ end }}
{{- $port := first $agent.ports }}
{{- range list "containerPort" "hostPort" }}{{ $_ := set $port . (int $values.metricsPort) }}{{ end }}
{{- with $values.listenAddress }}{{ $_ := set $port "hostIP" . }}{{ end }}
{{- $annotations := $template.metadata.annotations }}
{{- if hasKey $annotations "prometheus.io/port" }}
  {{- $_ := set $annotations "prometheus.io/port" (int $values.metricsPort | toString) }}
{{- end }}
{{- range $volume := $pod.volumes }}
  {{- if eq .name "metrics-tls" }}{{ $_ := set .secret "secretName" $values.tls.secretName }}{{ end }}
  {{- if eq .name "data-dir" }}{{ $_ := set .hostPath "path" $values.dataDir }}{{ end }}
  {{- range $values.extraVolumes }}
    {{- if eq .name $volume.name }}
      {{- fail (printf "extraVolumes: the agent has a volume %s already: use another name" .name) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $_ := set $pod "volumes" (concat $pod.volumes $values.extraVolumes) }}
{{- $_ := set $agent "volumeMounts" (concat $agent.volumeMounts $values.extraVolumeMounts) }}
{{- end }}

{{/* base/daemonset.yaml, the patches of the overlays that the values ask for, and then the values themselves. */}}
{{- define "nodeleak.daemonset" -}}
{{- include "nodeleak.check" . }}
{{- $daemonset := include "nodeleak.objects" (list . "base/daemonset.yaml") | fromYamlArray | first }}
{{- $patches := list }}
{{- range include "nodeleak.overlays" . | fromYamlArray }}
  {{- $patch := $.Files.Get (printf "overlays/%s/component/daemonset.yaml" .) | fromYaml }}
  {{- $patches = append $patches $patch.spec.template }}
{{- end }}
{{- $patches = append $patches (include "nodeleak.values" . | fromYaml) }}
{{- include "nodeleak.patch" (list $daemonset.spec.template $patches) }}
{{- include "nodeleak.pods" (list . $daemonset) }}
{{- toYaml $daemonset }}
{{- end }}
