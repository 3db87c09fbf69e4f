{{/* A file of deploy/, in the namespace of the release: (list $ "base/rbac.yaml") */}}
{{- define "nodeleak.file" -}}
{{- $root := index . 0 -}}
{{- $root.Files.Get (index . 1) | required (printf "the chart lacks %s" (index . 1))
    | replace "namespace: kube-system" (printf "namespace: %s" $root.Release.Namespace)
    | replace "managed-by: kustomize" (printf "managed-by: %s" $root.Release.Service) -}}
{{- end }}

{{/* The same with its values: (list $ "overlays/prometheus-operator/podmonitor.yaml" .Values.podMonitor) */}}
{{- define "nodeleak.monitoring" -}}
{{- $object := include "nodeleak.file" . | fromYaml -}}
{{- $values := index . 2 -}}
{{- range $name, $value := $values.labels }}{{ $_ := set $object.metadata.labels $name $value }}{{ end -}}
{{- $tls := (index . 0).Values.tls -}}
{{- range $object.spec.podMetricsEndpoints | default $object.spec.endpoints -}}
  {{- $_ := set . "interval" $values.interval -}}
  {{- if $tls.secretName -}}
    {{- $ca := dict "secret" (dict "name" $tls.secretName "key" "ca.crt") -}}
    {{- $config := dict "ca" $ca "serverName" $tls.serverName -}}
    {{- if $tls.clientCa -}}
      {{- $_ := set $config "cert" (dict "secret" (dict "name" $tls.clientSecretName "key" "tls.crt")) -}}
      {{- $_ := set $config "keySecret" (dict "name" $tls.clientSecretName "key" "tls.key") -}}
    {{- end -}}
    {{- $_ := set . "scheme" "https" -}}
    {{- $_ := set . "tlsConfig" $config -}}
  {{- end -}}
{{- end -}}
{{- toYaml $object -}}
{{- end }}
